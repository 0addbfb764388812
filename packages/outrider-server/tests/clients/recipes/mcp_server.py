"""A server of one tool, for clients that speak MCP over standard input and output."""

try:
    from mcp.server import MCPServer as Server  # version 2
except ImportError:
    from mcp.server.fastmcp import FastMCP as Server

server = Server("adder")


@server.tool()
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


if __name__ == "__main__":
    server.run()
