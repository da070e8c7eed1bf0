"""Keys that measures inherit mean what the class that declares them says."""

import pytest

from plmctl import registry
from plmctl.measures.base import get_measure

NARROWED = {"name", "data", "seq_len", "max_bytes"}
"""Keys that some measures declare again, with another default or limit and the same meaning."""


@pytest.mark.parametrize("name", registry.names("measures"))
def test_no_key_of_a_base_class_gets_another_meaning(name: str) -> None:
    """``separator`` of the objective clm was once taken for the mark between documents."""
    config = get_measure(name).Config
    own = set(config.__annotations__)
    inherited = {key for base in config.__mro__[1:] for key in getattr(base, "model_fields", {})}
    assert own & inherited <= NARROWED
