"""dialogd for programs that speak MCP: dialogs as sessions, begun, read, spoken in and stopped by tools."""
