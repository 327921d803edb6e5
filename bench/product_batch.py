"""The product's side of cpu_per_row.py: the public asset over the floor's rows, prompt, answer model and server."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "peers")]

import common  # noqa: E402
import dagster as dg  # noqa: E402
from ticket_model import Ticket  # noqa: E402

from dagster_llmbatch import LLMBatchResource, llm_batch_asset  # noqa: E402


def main() -> None:
    """Materialize the asset in this process, on an on-disk SQLite ledger below `--work`."""
    arguments = common.args()
    work = Path(arguments.work).absolute()

    @llm_batch_asset(
        "tickets_triaged",
        model=f"openai:{common.MODEL}",
        prompt=common.prompt_for("{{ text }}"),
        system=common.SYSTEM,
        output=Ticket,
        id_column="row",
        keep_columns=["row"],
        wait="block",
    )
    def tickets_triaged() -> str:
        return arguments.input

    resource = LLMBatchResource(
        openai={"api_key": "sk-fake", "base_url": arguments.base_url, "endpoint": "/v1/chat/completions"},
        ledger_url=f"sqlite:///{work / 'ledger.db'}",
        storage_path=str(work / "segments"),
        poll_interval=0.05,
        poll_backoff=1.0,
        max_requests_per_batch=50_000,  # the floor's batches
    )
    home = work / "results"  # where the default IO manager writes
    home.mkdir(exist_ok=True)
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        made = dg.materialize([tickets_triaged], resources={"llm_batch": resource}, instance=instance)
    if not made.success:
        raise SystemExit("the materialization failed")


if __name__ == "__main__":
    main()
