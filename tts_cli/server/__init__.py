"""Speech over HTTP and WebSocket: FastAPI routes around one engine on one worker thread. Needs the extra `server`."""
