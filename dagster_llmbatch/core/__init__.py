"""What happens to a partition: plan, submit, poll, collect, reconcile, publish. No Dagster, no HTTP, no clock of its own."""
