"""Base models and weights: finds them, pins their bytes, loads, saves, merges and hashes them.

The modules:

    source      pins the bytes of a base model: the flow finds them, each stage checks them
    hub         models of a hub: the commit that a name means, and its files
    hashes      the hash of each file, computed once
    templates   writes the arguments of policy.template_arguments into a chat template
    shape       a model without its weights, to count and to measure
    weights     loads a base model, with or without LoRA; saves and hashes what was learned
    unmerged    an adapter beside the weights, where merging would round it away
    effect      how much of what was learned is in the weights that are used
    embedded    the small policy that is built from a config and needs no download
    heap        decides whether freed memory is kept for the next buffers or given back
"""
