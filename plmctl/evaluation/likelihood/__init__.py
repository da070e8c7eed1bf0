"""Log-likelihood of texts under a model of any family, one file a kind.

``reader.open_reader`` opens a model; ``causal``, ``masked``, ``encoder_decoder`` and
``bidirectional`` score token sequences with it; ``texts.score_texts`` picks by family and
``sentences.sentences`` gives one summed log-probability a sentence. What is summed is always the
negative log-likelihood in nats of every token, each scored exactly once; averages are taken by the
measures, over a whole set and never over batches.
"""
