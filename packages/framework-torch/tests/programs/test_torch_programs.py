"""Programs with the calls of PyTorch's tutorials and only the changes that the page describes.

The page is docs/how-to/come-from-torch.md. The programs are our own; each test names the address of the
one that it follows.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

import sparring_torch as st

TEXT = """the red fox saw the black hen and the black hen saw the red fox so the fox ran to the
hen and the hen ran to the barn"""


def test_words_in_the_context_of_words() -> None:
    """https://docs.pytorch.org/tutorials/beginner/nlp/word_embeddings_tutorial.html: a model that
    predicts a word from the two previous ones. The optimizer of rows is one additional line.
    """
    torch.manual_seed(1)
    text = TEXT.split()
    number = {word: place for place, word in enumerate(dict.fromkeys(text))}

    class NextWord(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embeddings = st.Embedding(10)
            self.first = nn.Linear(20, 32)
            self.second = nn.Linear(32, len(number))

        def forward(self, words: Tensor) -> Tensor:
            joined = self.embeddings(words).view(1, -1)
            return functional.log_softmax(self.second(functional.relu(self.first(joined))), dim=1)

    model = NextWord()
    rows = st.Optimizer(model, torch.optim.SGD, lr=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_function = nn.NLLLoss()
    losses = []
    for _ in range(15):
        total = 0.0
        for first, second, target in zip(text, text[1:], text[2:], strict=False):
            rows.zero_grad()
            optimizer.zero_grad()
            likely = model(torch.tensor([number[first], number[second]]))
            loss = loss_function(likely, torch.tensor([number[target]]))
            loss.backward()
            rows.step()
            optimizer.step()
            total += loss.item()
        losses.append(total)
    assert losses[-1] < 0.5 * losses[0]
    # No context precedes the last word.
    assert sum(model.embeddings.num_rows().values()) == len(number) - 1


def test_bags_of_words_are_classified() -> None:
    """https://docs.pytorch.org/tutorials/beginner/text_sentiment_ngrams_tutorial.html: an
    EmbeddingBag with offsets, clipped gradients and a decreasing learning rate. Words are hashed to
    64 bits, so there is no vocabulary.
    """
    torch.manual_seed(0)

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = st.EmbeddingBag(8)
            self.fc = nn.Linear(8, 2)

        def forward(self, text: Tensor, offsets: Tensor) -> Tensor:
            scores: Tensor = self.fc(self.embedding(text, offsets))
            return scores

    good, bad = torch.randint(-(2**63), 2**63 - 1, (2, 20))
    texts = [(words, label) for label, words in enumerate((good, bad)) for _ in range(8)]
    texts = [(words[torch.randint(20, (5,))], label) for words, label in texts]
    labels = torch.tensor([label for _, label in texts])
    offsets = torch.tensor([0, *(len(words) for words, _ in texts[:-1])]).cumsum(0)
    joined = torch.cat([words for words, _ in texts])

    model = Classifier()
    optimizer = st.CombinedOptimizer(
        [
            st.Optimizer(model, torch.optim.SGD, lr=5.0),
            torch.optim.SGD(model.parameters(), lr=5.0),
        ]
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.1)
    model.train()
    for _ in range(20):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(joined, offsets), labels)
        loss.backward()
        clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        scheduler.step()
    assert {group["lr"] for group in optimizer.param_groups} == {0.05}
    model.eval()
    with torch.no_grad():
        assert (model(joined, offsets).argmax(1) == labels).float().mean() > 0.9


def test_words_are_tagged_by_an_lstm() -> None:
    """https://docs.pytorch.org/tutorials/beginner/nlp/sequence_models_tutorial.html: embeddings as
    input of an LSTM, here in padded batches, with padding id 0.
    """
    torch.manual_seed(1)

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = st.Embedding(6, padding_idx=0)
            self.lstm = nn.LSTM(6, 6, batch_first=True)
            self.tags = nn.Linear(6, 3)

        def forward(self, sentences: Tensor) -> Tensor:
            states, _ = self.lstm(self.words(sentences))
            tags: Tensor = self.tags(states)
            return tags

    sentences = torch.tensor([[11, 12, 13, 11, 14], [15, 16, 12, 17, 0]])
    tags = torch.tensor([[0, 1, 2, 0, 1], [1, 2, 1, 0, -100]])
    model = Tagger()
    rows = st.Optimizer(model, torch.optim.Adam, lr=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(40):
        model.zero_grad()
        scores = model(sentences)
        functional.cross_entropy(scores.flatten(0, 1), tags.flatten()).backward()
        rows.step()
        rows.zero_grad()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        found = model(sentences).argmax(2)
    assert torch.equal(found[tags >= 0], tags[tags >= 0])
    assert model.words.num_rows() == {model.words.name: 7}
