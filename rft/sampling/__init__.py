"""Policies that produce tokens: the engine in this process, and servers.

The modules:

    engine     many dialogues decoded at once
    kv_cache   the keys and values of all dialogues side by side
    prefixes   computes once what prompts have in common
    decode     a fast forward pass for the model families that it knows
    attention  the attention of that forward pass
    batching   brings the turns of many rollouts together
    policies   which weights and prompt a stage samples with
    remote     policies on servers: vLLM, SGLang, chat endpoints
"""
