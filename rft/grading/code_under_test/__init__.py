"""Code under test: is what a model wrote right?

    function      by input and output: the candidate gets inputs, and we compare what it answers
    hidden_tests  by tests in pytest's form, for what cannot be reduced to inputs and outputs
    patch         which files of a workspace may come along
    verdict       what both return, and how it becomes a grade
    plain         JSON as the only thing that is believed: read and compared by type and value
    answers       runs inside the sandbox: calls the candidate and writes down what it answers
    remote        runs inside the sandbox: what tests hold of a module in another process
    tests_inside  runs inside the sandbox: pytest over tests that lie in no file

Code that shares a process with its judge is its own judge: it can end the process with exit code 0,
patch the test framework, or return an object that equals everything. So here the two never share a
process, and what is expected is never where the candidate can read it. Loads without torch.
"""
