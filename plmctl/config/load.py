"""Minimal reader."""

import json
from pathlib import Path
from typing import Any, TypeVar

import yaml

from plmctl.config.base import Model

M = TypeVar("M", bound=Model)


def parse(model: type[M], path: Path) -> M:
    return model.model_validate_json(json.dumps(yaml.safe_load(path.read_text())))


def load(kind: str, path: Path, overrides: tuple[str, ...] = ()) -> Any:
    from plmctl.config.evaluate import EvalConfig
    from plmctl.config.finetune import FinetuneConfig
    from plmctl.config.pretrain import PretrainConfig

    models = {"pretrain": PretrainConfig, "finetune": FinetuneConfig, "eval": EvalConfig}
    data = yaml.safe_load(Path(path).read_text())
    for override in overrides:
        key, _, value = override.partition("=")
        at = data
        *parents, last = key.split(".")
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = yaml.safe_load(value)
    return models[kind].model_validate_json(json.dumps(data))


def dump(config: Model) -> str:
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def flat(data: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(data, dict):
        return {prefix: data}
    return {
        k: v
        for key, value in data.items()
        for k, v in flat(value, f"{prefix}.{key}" if prefix else key).items()
    }


def difference(a: Model, b: Model) -> list[str]:
    before, after = flat(a.model_dump(mode="json")), flat(b.model_dump(mode="json"))
    return [
        f"{k}: {before.get(k)!r} -> {after.get(k)!r}"
        for k in {**before, **after}
        if before.get(k) != after.get(k)
    ]
