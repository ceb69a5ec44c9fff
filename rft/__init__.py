"""The engine: retrain a tool-using agent on the task that it really does. Pure: files in, files out; no Prefect, DVC or MLflow.

Read it in this order, an hour from top to bottom. Each module opens with its own essay.

    errors, types, reports, config      who is to blame; what lives in memory; what lives in files; what configures a run
    redact                              no secret in any text that comes in or goes out
    recipe                              one example agent in a folder, loaded by path: `recipes/icd10`
    wire, headers                       what crosses to tools and graders, what travels beside it, and what never comes back
    tools, arguments, local_tools, mcp_tools    a call: is it well-formed, where does it go, what does the policy see
    toolserver, server                  a recipe's tools and grader as an HTTP server, and its life around a stage
    formats, chat                       how families of models write tool calls; between messages and tokens, append-only
    sampler, batching, remote           many dialogues decoded side by side; their turns brought together; policies on servers
    graders, budget, exploits           from a finished rollout to a grade and a reward; the cheats that must earn neither
    rollout, recovery, alarm            THE loop; pause, redo, refill; do failures depend on what the policy does?
    rollout_log, rollout_store, transcript, replay    one schema of log; in progress, through any kill; as text; graded anew
    workbench, policies                 what a stage with rollouts needs at hand; which weights, and who samples with them
    doctor                              what would go wrong, before any compute is spent
    stats, distances, profile, contracts    how sure are we; how far apart are two windows; what one looks like; what any must fulfil
    advantage, loss, model, embedded    what a step learns from; weights; the small policy that needs no download
    progress                            unfinished work outside the shelves, and progress lines
    page                                the one-page HTML report of a run

and the stages, each a `run(params)` behind `python -m rft STAGE` (`__main__`):

    traffic     a window of production conversations, pinned
    drift       is it still like what the agent was trained on?
    examples    train, validation, test
    policy      the base model
    baseline    how good is the agent today, and would RFT help?  (baseline and challenger share `evaluate`)
    prompt      does a better prompt do?
    train       RFT with the real tools and the real grader
    challenger  champion, champion with the new prompt, challenger: the same frozen examples
    gate        promote, reject or inconclusive

`rft.gate`, `rft.drift` and `rft.graders` load without torch: a decision can be made on a laptop.
"""
