"""A local server that speaks the providers' wire protocols, with a clock and faults."""
