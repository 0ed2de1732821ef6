"""Instructions, chats and preference pairs."""
