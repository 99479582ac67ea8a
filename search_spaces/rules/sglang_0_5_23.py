"""SGLang 0.5.23, read from its released wheel and checked against its own argument parser."""

from search_spaces.rules.common import VersionRules

RULES = VersionRules(
    version="0.5.23",
    algorithms=frozenset({"EAGLE", "EAGLE3", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO", "FROZEN_KV_MTP"}),
    chains_only=frozenset({"trtllm_mha", "flashmla", "aiter"}),
    paged_trees=frozenset({"flashinfer", "fa3", "triton"}),
    no_speculation=frozenset({"flex_attention"}),
    cannot_draft=frozenset({"torch_native"}),
    needs_gpu={"trtllm_mha": frozenset({"sm90", "sm100", "sm103", "sm120"})},
)
