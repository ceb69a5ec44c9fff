"""Code under test: is the code that a model wrote right?

    function      checks by input and output: the candidate gets inputs, and we compare its answers
    hidden_tests  checks by tests in pytest's form, where inputs and outputs are not enough
    patch         which files of a workspace are taken over for the tests
    verdict       what both checks return, and how it becomes a grade
    plain         plain JSON, the only form that we believe: read and compared by type and value
    answers       runs inside the sandbox: calls the candidate and writes its answers
    remote        runs inside the sandbox: stands in for a module that is in another process
    tests_inside  runs inside the sandbox: pytest over tests that are in no file

Code that shares a process with its judge can decide its own verdict. It can end the process with
exit code 0, patch the test framework, or return an object that equals everything. So here the two
never share a process, and the candidate can never read what is expected. Loads without torch.
"""
