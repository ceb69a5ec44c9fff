"""The trainer: from examples to new weights. Read in this order.

    loop          sample, learn, sync the weights; what is kept, and how a killed run goes on
    curriculum    which examples a step takes
    collect       their rollouts, in groups; which can be learned from, and why the others cannot
    sft_samples   dialogues to imitate: their order, and what their tokens weigh
    supervised    the loop of a warm start, without rollouts
    imitation     the batches of supervised training in stage `train`
    prefetch      sampling while the learner learns, with a bounded lag
    packing       a rollout as the learner sees it, and how samples share a row
    branches      attention in rows that are trees
    logprobs      log-probabilities of completion tokens
    forward       hidden states with less work, for the embedded policy's architecture
    critic        the value of a state, for PPO
    activations   what a microbatch's passes need in memory
    learner       one optimizer step
    schedule      its learning rate
    rates         the default of that rate, and how far a rate may be from it
    distributed   the same step on several processes
    processes     a team of one process
    sharding      FSDP2: weights in parts
    checkpoint    everything that a run needs to go on, written whole or not at all
    metrics       a run in numbers, and the signs that it should end
    collapse      notices that training destroys its policy
    journal       the files of a run's numbers

Advantages and losses are in rft/algorithms, the stage's files in rft/stages/train.py.
"""
