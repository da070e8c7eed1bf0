"""``plmctl pretrain``: corpus and tokenizer in, a Hugging Face model folder out."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plmctl import families, objectives
from plmctl.config.pretrain import PretrainConfig
from plmctl.errors import ConfigError
from plmctl.runs import launch
from plmctl.runs.folder import open_run, write_environment, write_results
from plmctl.runs.prepare import Prepared, prepare
from plmctl.runs.say import say, show

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from plmctl.training.loop import Engine, Phase, Plan
    from plmctl.training.step import Step


def run(config: PretrainConfig, *, fresh: bool, as_json: bool) -> None:
    """Pretrain, or go on with a run that was cut short; a finished run is left alone."""
    config = with_defaults(config)
    main = launch.is_main()
    folder = open_run(config, config.run, fresh=fresh) if main else Path(config.run)
    if (folder / "model").is_dir():
        say(f"{folder}: this run is finished; its model is in {folder / 'model'}")
        return
    prepared = prepare(config)
    _check(config, prepared)
    processes = launch.process_count(config.launch, config.compute.device)
    if processes > 1 and not launch.is_worker():
        raise SystemExit(launch.start("pretrain", folder / "config.yaml", processes))
    results = _train(config, folder, prepared)
    if main:
        show(results, as_json=as_json, title=f"pretrained {folder}")
