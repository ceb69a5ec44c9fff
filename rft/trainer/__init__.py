"""The trainer: from examples to new weights. Read in this order.

    loop          sample, learn, hand the weights on; what is kept, and how a killed run goes on
    curriculum    which examples a step takes
    collect       their rollouts, in groups; what of them can be learned from, and why not the rest
    ahead         sampling while the learner learns, with a bounded lag
    samples       a rollout as the learner sees it, and how samples share a row
    scoring       log-probabilities of the policy's own tokens
    forward       hidden states with less work, for the embedded policy's architecture
    critic        the value of a state, for PPO
    learner       one optimizer step
    schedule      its learning rate
    processes     the same step on several processes
    sharding      FSDP2: weights in parts
    checkpoint    everything that a run will still read, whole or not at all
    watch         a run in numbers, and the signs that it should end

What an algorithm is (advantages and loss) stands in rft/algorithms; the stage's files in
rft/stages/train.py.
"""
