"""Tool calls: check them, send them to their tools, and give the policy the replies.

The modules:

    client      sends the calls of a turn to their tools
    http        a tool behind an HTTP address
    arguments   checks a call's arguments against the tool's schema
    local       tools that are Python functions, in processes of their own
    mcp         tools of MCP servers
    mcp_righted corrects replies of MCP servers that break the protocol
    unlearned   refuses settings that show an embedded policy what it never learned to read
    signatures  makes the schema of a tool from its Python function
    interpreter the user's own Python interpreter, under which a recipe's tools may run
    server      serves a recipe's tools and grader over HTTP
    states      what a recipe keeps for each rollout on its server
    lifetime    starts and stops that server around a stage
"""
