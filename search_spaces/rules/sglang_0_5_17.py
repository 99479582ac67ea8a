"""SGLang 0.5.17, from its recorded servers: argument errors, worker deaths and resolved arguments.

It has no UNO. The paged-tree and torch_native refusals were recorded; the rest is as in 0.5.23.
"""

from search_spaces.rules.common import VersionRules

RULES = VersionRules(
    version="0.5.17",
    algorithms=frozenset({"EAGLE", "EAGLE3", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "FROZEN_KV_MTP"}),
    chains_only=frozenset({"trtllm_mha", "flashmla", "aiter"}),
    paged_trees=frozenset({"flashinfer", "fa3", "triton"}),
    no_speculation=frozenset({"flex_attention"}),
    cannot_draft=frozenset({"torch_native"}),
    needs_gpu={"trtllm_mha": frozenset({"sm90", "sm100", "sm103", "sm120"})},
)
