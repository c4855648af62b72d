import { models, refresh } from "../../api/server";
import { download, fileName, toJson, toMarkdown } from "../../history/files";
import { IconButton } from "../../ui/button";
import { Icon } from "../../ui/icon";
import { Menu } from "../../ui/menu";
import { conversation } from "./conversations";
import { chosenModel, shortName, stateOf } from "./model";
import { listOpen, newChat, openDialog, settingsOpen, toggleList, toggleSettings } from "./panels";
import { change } from "./settings";

export function Header() {
  const shown = conversation.value;
  const empty = Object.keys(shown.turns).length === 0;
  return (
    <header class="chat-header">
      <IconButton
        icon="menu"
        label={listOpen.value ? "Hide the list of conversations" : "Show the list of conversations"}
        expanded={listOpen.value}
        onClick={toggleList}
      />
      {!listOpen.value && <IconButton icon="plus" label="New chat" onClick={newChat} />}
      <ModelChoice />
      <h1 class="chat-title">{shown.title || "New chat"}</h1>
      <Menu
        label="Export"
        icon="export"
        disabled={empty}
        items={[
          {
            label: "Save as Markdown",
            icon: "export",
            onClick: () => download(fileName(shown.title, "md"), toMarkdown(shown), "text/markdown"),
          },
          {
            label: "Save as JSON, with all branches",
            icon: "export",
            onClick: () => download(fileName(shown.title, "json"), toJson([shown]), "application/json"),
          },
        ]}
      />
      <IconButton icon="code" label="Show as curl, Python or JavaScript" onClick={() => openDialog("code")} />
      <IconButton icon="sliders" label="Settings" expanded={settingsOpen.value} onClick={toggleSettings} />
    </header>
  );
}

function ModelChoice() {
  const chosen = chosenModel.value;
  return (
    <span class="model-choice">
      <select
        aria-label="Model"
        value={chosen?.id ?? ""}
        title={chosen?.id}
        onFocus={() => void refresh()}
        onChange={(event) => change({ model: event.currentTarget.value })}
      >
        {models.value.length === 0 && <option value="">No model</option>}
        {models.value.map((card) => (
          <option key={card.id} value={card.id}>
            {[shortName(card.id), card.parent ? "adapter" : "", stateOf(card)].filter(Boolean).join(" · ")}
          </option>
        ))}
      </select>
      <Icon name="down" size={14} />
    </span>
  );
}
