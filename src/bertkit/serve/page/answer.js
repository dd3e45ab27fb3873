// Extractive question answering: the answer is marked in the passage.

import { element } from "../inside/drawing.js";
import { around, bars, marked, percent, short, verdict } from "./parts.js";

const CANDIDATES = 5;
const PASSAGE =
  "The lighthouse at Alexandria was built in the third century before our era, on an island called Pharos. " +
  "It was more than a hundred meters high, and for centuries it was among the tallest structures made by people. " +
  "Three earthquakes between 956 and 1323 damaged it badly. In 1480 the last of its stones were used to build a fort on the site.";

export const tool = {
  name: "answer",
  title: "Ask",
  ability: "answer",
  lead: "Ask a passage something; the answer is marked where it stands in it. Long passages are read through windows.",
  needs: "a question-answering model",
  how: "Fine-tune one on questions, passages and answers in SQuAD's format:",
  command: "bertkit finetune answer --train train.json --out my-answers",
  fields: [
    { name: "question", label: "Question", kind: "line", hint: "type a question" },
    { name: "passage", label: "Passage", rows: 8, hint: "paste a text that may hold the answer" },
  ],
  examples: [
    { title: "Where it stood", question: "Where did the lighthouse stand?", passage: PASSAGE },
    { title: "Its stones", question: "What became of its stones?", passage: PASSAGE },
    { title: "Not in the text", question: "Who paid for it?", passage: PASSAGE },
  ],
  ask: async ({ question, passage }, model, send) => (await send("answer", { question, passage, best: CANDIDATES })).results[0],
  draw: (result, { passage }) => {
    const view = new AnswerView(result, passage);
    return { nodes: view.nodes, summary: sentence(result) };
  },
  why: ({ start: answered, seen, candidates }, { question, passage }, model) => {
    const body = (start, end, rest) => ({ text: question, pair: around(passage, [start, end], seen, model), ...rest });
    if (answered === null) return [["that there is no answer", body(0, 0, {})]];
    return candidates.map(({ text: target, start, end }) => [short(target), body(start, end, { target })]);
  },
  table: {
    columns: { question: ["question"], passage: ["passage", "context", "text"] },
    path: "answer",
    body: (rows) => ({ question: rows.map(({ question }) => question), passage: rows.map(({ passage }) => passage) }),
    cells: ({ text, probability }) => ({ answer: text ?? "", probability }),
  },
};

/** The passage with one candidate marked, and the candidates to choose from. */
class AnswerView {
  constructor(result, passage) {
    Object.assign(this, { result, passage, chosen: result.start === null ? null : 0 });
    this.text = element("div", {});
    this.list = element("div", {});
    this.nodes = [this.text, this.list];
    this.draw();
  }

  draw() {
    const { candidates } = this.result;
    const spans = this.chosen === null ? [] : [candidates[this.chosen]];
    const marks = spans.map(({ start, end }) => ({ start, end, make: (text) => element("mark", { class: "answer" }, text) }));
    this.text.replaceChildren(marked(this.passage, marks));
    const rows = candidates.map(({ text, probability }, index) => ({
      label: short(text, 80), share: probability, chosen: index === this.chosen, choose: () => this.choose(index),
    }));
    this.list.replaceChildren(rows.length ? bars(rows) : "");
  }

  choose(index) {
    this.chosen = index;
    this.draw();
    this.list.querySelectorAll("button")[index].focus();
    this.text.querySelector("mark")?.scrollIntoView({ block: "nearest" });
  }
}

function sentence({ start, probability, candidates }) {
  if (start === null) return `The passage does not say, thinks the model (${percent(probability)}).`;
  return verdict(candidates.map(({ text, probability: share }) => ({ label: short(text, 120), share })));
}
