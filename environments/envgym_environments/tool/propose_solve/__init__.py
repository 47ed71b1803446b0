"""`propose-solve`: one policy makes tasks about small programs and solves them; an executor says what is right."""
