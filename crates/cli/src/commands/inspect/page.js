"use strict";
const slider = document.getElementById("turn");
const tokens = [...document.querySelectorAll("pre span")].map((span) => ({
  span,
  state: span.dataset.state,
  born: Number(span.dataset.turn),
  /* Without a turn of death a token lives; a dead one whose turn is unknown has 0. */
  died: "died" in span.dataset ? Number(span.dataset.died) : Infinity,
}));
const turns = document.body.dataset.turns.split(" ").map(Number);

function show(turn) {
  const counts = { live: 0, shared: 0, protected: 0, sink: 0, dead: 0, pending: 0 };
  for (const token of tokens) {
    const later = token.born > turn;
    const dead = !later && turn >= token.died;
    token.span.classList.toggle("later", later);
    token.span.classList.toggle("dead", dead);
    if (!later) counts[dead ? "dead" : token.state] += 1;
  }
  for (const section of document.querySelectorAll("section"))
    section.classList.toggle("later", Number(section.dataset.turn) > turn);
  for (const event of document.querySelectorAll(".events li"))
    event.classList.toggle("now", Number(event.dataset.turn) === turn);
  for (const [state, count] of Object.entries(counts)) {
    document.getElementById("count-" + state).textContent = count;
    document.getElementById("bar-" + state).style.width = (100 * count) / Math.max(1, tokens.length) + "%";
  }
  document.getElementById("shown").textContent = "after turn " + turn + " of " + turns[turns.length - 1];
}

slider.addEventListener("input", () => show(turns[Number(slider.value)]));
