"""The engine: retrains a tool-using agent on its real task. It is pure: files in, files out, and no
Prefect, DVC or MLflow.

The core takes an hour to read, in these eight files. Each opens with its own essay:

    rft/types.py               what lives in memory: a turn, a trajectory, a grade
    rft/wire/contract.py       what crosses to tools and graders
    rft/tools/client.py        a tool call: where it goes, and what the policy sees
    rft/rollouts/loop.py       THE loop: one rollout, from the first message to its grade
    rft/grading/budget.py      from a grade to a reward
    rft/algorithms/grpo.py     from rewards to advantages and a loss
    rft/trainer/loop.py        collect, learn, check, save
    rft/gate/decide.py         promote, reject or inconclusive

This is the list of all packages, called rooms, the lowest first. A room imports only what stands
above it in the list; `lint-imports` checks that.

    errors, types, files       who is to blame; what lives in memory; writing files safely, and
                               hashing them
    needs, secrets, process    what each stage depends on; keeping secrets out of all text; child
                               processes that end with their parent
    stats, scale, formatting   confidence intervals; a grader's scale; numbers as people read them
    schema, normal_form        JSON schemas that others wrote; Unicode's normal forms
    threads                    how many processors we may use, and how many threads a model takes
    lines, bm25                the lines that a stage prints for its driver; search by words
    sources                    what a recipe imports from outside its folder
    commands                   commands in messages, ready to paste
    progress, stopping         a stage's work until its files are safe; stopping on request
    engine                     which engine and packages a stage is to run with, as hashes
    config                     what configures a run: params.yaml
    reports                    what lives in files
    rows                       the user's own rows, byte for byte
    recipe, stage_files        one example agent in a folder; where each stage's files are
    wire                       what crosses to tools, graders and served policies
    sandbox                    where code that a model wrote runs
    chat                       from messages to tokens and back
    traffic                    logs of production traffic, ingested once into columns; choosing
                               examples from them
    tools                      tools, their calls and the tool server
    grading                    from a finished rollout to a grade and a reward
    drift                      windows of traffic, described and compared
    models                     weights
    notices                    messages to the people who run the ladder: a webhook, mail
    algorithms, kernels        advantages and losses, one file each; fast arithmetic
    rollouts                   THE loop, its log and its store
    sampling                   policies that produce tokens
    trainer                    collects rollouts, learns from them, saves checkpoints
    gate                       promote, reject or inconclusive
    stages                     the nine stages, each a `run(params)` behind `python -m rft STAGE`
    smoke                      whether an agent works at all, right before its promotion
    doctor                     finds what would go wrong, before any compute is spent
    page                       the one-page HTML report of a run, and that of an audit
    export                     an agent in a folder, to be served elsewhere
    bridges                    jobs, rows and graders of other services, as an agent folder

`rft.gate`, `rft.stages.drift` and `rft.grading` load without torch: a decision can be made on a
laptop.
"""

from rft import threads

threads.spin_briefly()  # every process of ours imports `rft` before PyTorch
