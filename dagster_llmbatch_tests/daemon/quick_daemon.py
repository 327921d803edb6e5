"""The Dagster daemon as it is, with shorter pauses between its ticks: `python quick_daemon.py run`."""

import sys

from dagster._daemon import auto_run_reexecution, backfill, controller, sensor
from dagster._daemon.cli import create_dagster_daemon_cli

PAUSE = 1
backfill.DEFAULT_DAEMON_INTERVAL_SECONDS = PAUSE
sensor.MIN_INTERVAL_LOOP_TIME = PAUSE
controller.DEFAULT_DAEMON_INTERVAL_SECONDS = PAUSE
assert auto_run_reexecution

if __name__ == "__main__":
    sys.exit(create_dagster_daemon_cli()())
