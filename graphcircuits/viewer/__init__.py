"""Pictures of circuits as single HTML pages that open from disk."""
