"""specsearch: the fastest SGLang speculative-decoding settings on your own node, proved."""

__version__ = "0.1.0"
