"""From decision to done: git, worktrees, the sandbox, the gate."""
