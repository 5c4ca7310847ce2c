/* A button beside each code block that copies it. Without a clipboard (no https) there is none. */
if (navigator.clipboard) {
  for (const button of document.querySelectorAll(".code button")) {
    const word = button.textContent;
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
      button.textContent = button.dataset.copied;
      setTimeout(() => { button.textContent = word; }, 2000);
    });
  }
}
