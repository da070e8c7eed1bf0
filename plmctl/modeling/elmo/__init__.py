"""ELMo (Peters et al., 2018, arXiv:1802.05365) as a transformers model.

transformers has no ELMo. Importing this package makes its Auto classes know ours: ``AutoConfig``,
``AutoModel`` (the layers) and ``AutoModelForPreTraining`` (with the language model's head).
"""

from plmctl.modeling.elmo.characters import encode_sentences, encode_words
from plmctl.modeling.elmo.config import ElmoConfig
from plmctl.modeling.elmo.mix import ScalarMix
from plmctl.modeling.elmo.network import ElmoForPreTraining, ElmoModel, ElmoOutput

__all__ = [
    "ElmoConfig",
    "ElmoForPreTraining",
    "ElmoModel",
    "ElmoOutput",
    "ScalarMix",
    "encode_sentences",
    "encode_words",
]
