"""Random files of interactions whose content is known, and a check of how `sparring train` reads them.

    python tests/random_files --seeds 0:500 --report
    python tests/random_files --seeds 17:18 --keep FOLDER

The first command generates a file per seed and prints how many the command understood, stopped at or
misread, with each difference. The second one keeps the file of a seed and prints its truth.

`dimensions` lists what a file can vary in, and which combinations make no sense. `columns` generates
columns, `writers` writes them, `generator` combines both, and `checker` compares the truth with the
output of the command line. No module imports the product or was written from its reader, so that a
misunderstanding of a format in the reader is not repeated here.
"""
