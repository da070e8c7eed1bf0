"""The numbers about the code are those of a package that a person can count."""

from pathlib import Path

from scripts.measure_house import measures

FILES = {
    "families/bert.py": 'MODEL_TYPE = "bert"\n',
    "families/base.py": "def get_family(name):\n    return name\n",
    "commands/pretrain.py": '''"""A command."""

from typing import Any
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plmctl.run.start import begin


def run(config: PretrainConfig, other: Any) -> None:
    """Run.

    Args:
        config: The config.
        other: Shape [B, L], on the device that the model is on.
    """
    # why
    from plmctl.families.base import get_family

    if _is_bert(get_family(config.family)):
        begin({"bert": 1, "gpt2": 2})


def _is_bert(family):
    return family in ("bert", "roberta")
''',
    "run/start.py": """from plmctl.commands.pretrain import run

TABLE = ["bert", "gpt2"]


def begin(table):
    pass
""",
    "families/gpt2.py": "",
}


def test_each_place_is_counted_where_it_is(tmp_path: Path) -> None:
    for name, text in FILES.items():
        path = tmp_path / "plmctl" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    table = {label: (number, places) for label, number, places in measures(tmp_path / "plmctl")}
    assert table["files"][0] == 5
    assert table["files of the core commands"][0] == 4  # all but what is imported for types
    assert table["code lines"][0] == 17
    assert [place.partition("  ")[0] for place in table["comparisons of names: families"][1]] == [
        "plmctl/commands/pretrain.py:21",
        "plmctl/commands/pretrain.py:25",
        "plmctl/run/start.py:3",
    ]
    for label, number in {
        "signatures with a whole config": 1,
        "look-ups by name": 1,
        "functions": 4,
        "private functions with one use in their file": 1,
        "Any": 1,
        "imports inside functions": 1,
        "Args: entries of five words or fewer": 1,
        "circles of imports": 0,
        "circles of imports, with TYPE_CHECKING": 1,
    }.items():
        assert table[label][0] == number, label
    assert table["body: mean"][0] == "1.8"  # 4, 1, 1 and 1 lines
