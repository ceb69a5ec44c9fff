"""The engine: retrain a tool-using agent on the task that it really does. Pure: files in, files out; no Prefect, DVC or MLflow.

Read it in this order, an hour from top to bottom. Each module opens with its own essay.

    errors, types, reports, config      who is to blame; what lives in memory; what lives in files; what configures a run
    files                               whole or not there; the hashes of their bytes, and of a JSON value
    commands                            what a message tells to type works as it is pasted
    determinism                         when equal inputs give equal bytes, and what is refused then
    secrets                             no secret in any text that comes in or goes out
    process                             a child process: the tree that it imports, its end with ours, its last words
    rows, response_format               the user's own rows, byte for byte, and what we read of them; what an answer must look like
    recipe                              one example agent in a folder, loaded by path: `recipes/icd10`
    trace                               two names of a rollout: ours, from the seed, and the wire's, new in every run
    wire, headers, http_client          what crosses to tools and graders; what travels beside it; how it is sent and retried
    tools, arguments, local_tools, mcp_tools    a call: is it well-formed, where does it go, what does the policy see
    toolserver, server                  a recipe's tools and grader as an HTTP server, and its life around a stage
    response_format                     what the final answer must look like, as a job or a row says it
    formats, chat, control              how families of models write tool calls; between messages and tokens, append-only; no text is a control token
    dialogue                            what a policy hears first, and the whole dialogue as messages
    slots, fast_forward, sampler        keys and values side by side; a forward for small models; many dialogues decoded at once
    speaking, batching, remote          what the loop asks of a policy; turns brought together; policies on servers
    scale, endpoint, graders            from a finished rollout to a grade, or to the word that there is none
    budget, exploits                    from a grade to a reward; the cheats that must earn neither
    margins                             which hack rate can this many test examples show at all?
    rollout, recovery, alarm            THE loop; pause, redo, refill; do failures depend on what the policy does?
    suspicion                           do a baseline's numbers speak of the agent, or of its wiring?
    rollout_log, rollout_store          one schema of log; finished rollouts outlive any kill
    transcript, replay                  a rollout as text; graded anew
    workbench                           what a stage with rollouts needs at hand
    shelves, prompting                  where each stage's files are, the champion among them; its prompt, and the turns that one leaves
    policies                            which weights: the champion's, the base model's; who samples with them
    doctor                              what would go wrong, before any compute is spent
    stats, distances                    how sure are we; how far apart are two windows
    conversations, profile, contracts   a window of production; what one looks like; what any must fulfil
    model, embedded                     weights; the small policy that needs no download
    algorithms, kernels                 advantages and losses, a file each; the same arithmetic on a GPU
    trainer                             the loop, the learner, the curriculum, checkpoints, and the signs that a run should end
    needs, progress                     what each stage depends on; its work while it is not safe on the shelf, and progress lines
    stopping, words                     a stop in order, before the end; counts and numbers as people read them
    page                                the one-page HTML report of a run
    play, export                        a conversation with an agent; all of it in a folder, to be served elsewhere

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
