"""Snapshots that outlive the process that took them: a store on disk, and files that another host can import."""
