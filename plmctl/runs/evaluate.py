"""``plmctl eval``: a model folder in, figures out."""

import json
from pathlib import Path
from typing import Any

from plmctl.config.evaluate import EvalConfig
from plmctl.corpus.source import content_hash, resolve
from plmctl.evaluation import measures
from plmctl.reporting.tables import classification_tables
from plmctl.runs.finetune import check_model
from plmctl.runs.folder import open_run, versions, write_environment, write_results
from plmctl.runs.say import say, show


def run(config: EvalConfig, *, fresh: bool, as_json: bool) -> None:
    """Take every measure; those that a cut-short evaluation has taken already are kept."""
    from plmctl.training.engine import make_accelerator

    check_model(config.model)
    folder = open_run(config, config.run, fresh=fresh)
    subject = measures.Subject(
        config.model, config.seed, config.batch_size, make_accelerator(config.compute)
    )
    write_environment(folder, {})
    results: dict[str, Any] = {}
    tables = []
    for number, asked in enumerate(config.measures, 1):
        name = asked.name if asked.name not in results else f"{asked.name}-{number}"
        path = folder / "eval" / f"{name}.json"
        if not path.is_file():
            say(f"measuring {asked.name} of {config.model}")
            figures = measures.get(asked.name).measure(asked, subject)
            document = {
                "kind": "eval",
                "measure": asked.model_dump(),
                "model": config.model,
                "seed": config.seed,
                "data_sha256": content_hash(resolve(getattr(asked, "data", ()))),
                "versions": versions(),
            }
            write_results(folder, name, {**document, "results": figures})
        results[name] = json.loads(Path(path).read_text(encoding="utf-8"))["results"]
        tables += classification_tables(f"{asked.name} of {config.model}", results[name])
    show({"model": config.model, "results": results}, tables, as_json=as_json)
