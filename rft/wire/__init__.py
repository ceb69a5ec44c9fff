"""Messages to tool servers, graders and policies on servers, and how they are sent.

The modules:

    contract   the bodies of OpenAI's Agent RFT contract
    client     HTTP with deadlines, retries and rate limits; decides who is to blame
    headers    keys, signatures and the headers of a rollout
    trace      the two names of a rollout: ours, from the seed, and the wire's, new each time
"""
