"""Speculative decoding that never costs: proposers, the exact acceptance rule, and who decides how much.

proposal.py     a drafted token, what it was drawn from, and how sure its proposer was
ngram.py        drafts from the conversation's own words
accept.py       which drafts stand: the output is distributed exactly as the target model's
cost.py         V(k): measured seconds of a batch of k tokens
calibration.py  how often drafts stand, by proposer, place and confidence
leaning.py      which words' drafts fall in this answer
stopping.py     the optimal stopping rule, as arithmetic
ledger.py       what drafting may cost an answer, and how fast it has been
controller.py   how many to draft, or none
"""
