"""The deployment checklist for a shipped library, item by item."""
