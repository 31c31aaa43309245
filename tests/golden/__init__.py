"""Golden outputs: what reports of known runs say, pinned so that no change goes unnoticed.

``cases.py`` lists the runs, ``figures.py`` takes their figures from the command line, ``write.py``
writes a folder for each case, and ``tests/test_golden.py`` compares. A change that is meant to
change a figure, a verdict or a table writes the files of its cases again, and its commit message
says what changed and why.

    python -m tests.golden.write [NAME ...]     # figures.json and report.md
"""
