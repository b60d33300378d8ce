"""What is run on models. attention.py to glue.py import nothing from here.

RUN is a folder that pretrain.py wrote. The docstring of each file explains its options.

    python -m lab.explore RUN          how a score is a sum of terms, a page that computes
    python -m lab.figures fixed RUN    the paper's figures from your run
    python -m lab.pairs RUN            minimal pairs: which of two sentences does a model prefer?
    python -m lab.lengths RUN          the loss in sequences longer than those of the training
    python -m lab.report RUN           tables of runs: means, standard errors, differences
    python -m lab.bench                what a training step costs
    python -m lab.huggingface          pre-trained BERTs become runs, and runs checkpoints
    python -m lab.seq2seq              translation: an encoder and a decoder of any variant
    from lab import look               in Python: attention matrices and kernels, as NumPy arrays
"""
