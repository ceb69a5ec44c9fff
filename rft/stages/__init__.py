"""The nine stages of the ladder. Each is a `run(params)` behind `python -m rft STAGE`.

    traffic     pin a window of production conversations
    drift       compare it with what the agent was trained on: continue, refresh or stop
    examples    write train, validation and test
    policy      build the base model, or point to the given one
    baseline    measure today's agent, and whether RFT would help
    prompt      look for a better prompt
    train       train the weights, with the real tools and the real grader
    challenger  play the champion, the champion with the new prompt, and the challenger on the same
                frozen examples
    gate        decide: promote, reject or inconclusive

No stage imports another. They share the files in `data/` and the rooms below this one.
"""
