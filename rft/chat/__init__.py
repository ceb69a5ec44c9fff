"""Chat: between messages and tokens.

The modules:

    renderer   renders messages as tokens, append-only, and parses the policy's turns
    formats    how each family of models writes a tool call
    control    keeps text from becoming a control token
    dialogue   the opening of a rollout, and its whole dialogue, as messages
"""
