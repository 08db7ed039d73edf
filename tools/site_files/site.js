document.addEventListener("DOMContentLoaded", () => {
  for (const element of document.querySelectorAll(".math"))
    katex.render(element.textContent, element, { displayMode: element.tagName === "DIV" });
  // The smallest letters of a figure have 12 px, and 9 are kept: on a phone it scrolls.
  for (const image of document.querySelectorAll("article img[width]"))
    image.style.minWidth = `${0.75 * image.getAttribute("width")}px`;
});
