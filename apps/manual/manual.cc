#include "manual.hpp"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "build_facts.hpp"
#include "pollcore/version.hpp"

namespace pollcore::manual {
namespace {

constexpr std::size_t kColumns = 110;

/// Escapes text for man(7). A dash stays the dash of an option, and a dot at the beginning does not become a troff
/// request.
std::string escaped(std::string_view text) {
    std::string result;
    for (const char c : text) {
        switch (c) {
            case '\\': result += "\\e"; break;
            case '-': result += "\\-"; break;
            case '\'': result += "\\(aq"; break;
            default: result += c;
        }
    }
    if (result.starts_with('.')) {
        result.insert(0, "\\&");
    }
    return result;
}

std::string upper(std::string text) {
    for (char& c : text) {
        c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    }
    return text;
}

bool takes_value(const CLI::Option& option) {
    return option.get_items_expected_max() != 0;
}
bool is_positional(const CLI::Option& option) {
    return option.get_positional();
}

std::vector<std::string> names_of(const CLI::Option& option) {
    std::vector<std::string> names;
    for (const std::string& name : option.get_snames()) {
        names.push_back("-" + name);
    }
    for (const std::string& name : option.get_lnames()) {
        names.push_back("--" + name);
    }
    return names;
}

/// The type name of the option's value; empty if the option takes no value.
std::string value_of(const CLI::Option& option) {
    return takes_value(option) ? option.get_type_name() : "";
}

std::vector<const CLI::App*> subcommands_of(const CLI::App& app) {
    return app.get_subcommands([](const CLI::App*) { return true; });
}

/// The choices in the type name `{a,b}`, separated by blanks: "a b". Empty for any other type name.
std::string choices_of(const std::string& type) {
    if (!type.starts_with('{') || !type.ends_with('}')) {
        return {};
    }
    std::string choices = type.substr(1, type.size() - 2);
    std::replace(choices.begin(), choices.end(), ',', ' ');
    return choices;
}

std::string all_words(const CLI::App& app) {
    std::string words;
    for (const CLI::App* command : subcommands_of(app)) {
        words += command->get_name() + " ";
    }
    for (const CLI::Option* option : app.get_options()) {
        if (const std::string choices = choices_of(value_of(*option)); is_positional(*option) && !choices.empty()) {
            words += choices + " ";
        }
        for (const std::string& name : names_of(*option)) {
            words += name + " ";
        }
    }
    words.pop_back();
    return words;
}

/// The cases of a bash `case` over the option before the cursor, one for each option with a value. A case completes the
/// value, or nothing if the possible values are not known.
std::string value_cases(const CLI::App& app, const std::string& indent) {
    std::string cases;
    for (const CLI::Option* option : app.get_options()) {
        if (!takes_value(*option) || is_positional(*option)) {
            continue;
        }
        const std::string type = value_of(*option);
        const std::string choices = choices_of(type);
        std::string words = "return 0";
        if (!choices.empty()) {
            words = fmt::format("mapfile -t COMPREPLY < <(compgen -W '{}' -- \"$word\"); return 0", choices);
        } else if (type == "FILE" || type == "SOCKET") {
            words = "compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- \"$word\"); return 0";
        } else if (type == "DEVICE") {
            words =
                "mapfile -t COMPREPLY < <(compgen -W \"$(cd /sys/class/infiniband 2>/dev/null && echo *) soft0\" -- "
                "\"$word\"); return 0";
        }
        cases += fmt::format("{}{}) {} ;;\n", indent, fmt::join(names_of(*option), " | "), words);
    }
    return cases;
}

/// The description of an option, for man(7).
std::string option_text(const CLI::Option& option) {
    std::vector<std::string> names = is_positional(option) ? std::vector{option.get_name(true)} : names_of(option);
    for (std::string& name : names) {
        name = fmt::format("\\fB{}\\fR", escaped(name));
    }
    std::string text = fmt::format(".TP\n{}", fmt::join(names, ", "));
    const std::string value = value_of(option);
    if (!value.empty() && !is_positional(option)) {
        text += fmt::format(" \\fI{}\\fR", escaped(value));
    }
    text += "\n" + escaped(option.get_description());
    if (const std::string choices = choices_of(value); is_positional(option) && !choices.empty()) {
        text += ": " + escaped(choices);
    }
    if (const std::string standard = option.get_default_str(); !standard.empty()) {
        text += fmt::format(" (default: {})", escaped(standard));
    }
    return text + "\n";
}

/// The description of a subcommand that has no page of its own.
std::string subcommand_text(const CLI::App& command) {
    std::string text = fmt::format(".TP\n\\fB{}\\fR", escaped(command.get_name()));
    std::string options;
    for (const CLI::Option* option : command.get_options()) {
        if (is_positional(*option)) {
            const std::string name = fmt::format("\\fI{}\\fR", option->get_name(true));
            text += option->get_required() ? " " + name : " [" + name + "]";
        }
        if (is_positional(*option) || takes_value(*option)) {
            options += option_text(*option);
        }
    }
    text += fmt::format("\n{}.\n", escaped(command.get_description()));
    return options.empty() ? text : text + ".RS\n" + options + ".RE\n";
}

}  // namespace

std::string wrapped(const std::string& text, std::size_t first, std::size_t indent, std::size_t columns) {
    std::string lines;
    std::size_t column = first;
    std::size_t at = 0;
    while (at < text.size()) {
        const std::size_t end = std::min(text.find(' ', at), text.size());
        const std::string word = text.substr(at, end - at);
        if (column > indent && column + 1 + word.size() > columns) {
            lines += "\n" + std::string(indent, ' ');
            column = indent;
        } else if (column > indent) {
            lines += ' ';
            ++column;
        }
        lines += word;
        column += word.size();
        at = end + 1;
    }
    return lines;
}

std::string footer(const std::vector<Section>& sections) {
    std::string text;
    for (const Section& section : sections) {
        text += (text.empty() ? "" : "\n") + section.title + ":\n";
        for (const auto& [term, meaning] : section.entries) {
            if (term.empty()) {
                text += "  " + wrapped(meaning, 2, 2, kColumns) + "\n";
            } else {
                const std::string start = fmt::format("  {:<3}", term);
                text += start + " " + wrapped(meaning, start.size() + 1, start.size() + 1, kColumns) + "\n";
            }
        }
    }
    return text;
}

std::string manual_page(const Page& page) {
    const CLI::App& app = *page.command;
    std::string spoken = page.name;  // the command as it is typed: a subcommand follows its program
    if (app.get_parent() != nullptr) {
        spoken = app.get_parent()->get_name() + " " + app.get_name();
    }
    std::string text = fmt::format(".TH {} 1 \"\" \"pollcore {}\" \"pollcore\"\n.SH NAME\n{} \\- {}\n",
                                   upper(page.name), POLLCORE_VERSION, escaped(page.name), escaped(page.summary));
    text += fmt::format(".SH SYNOPSIS\n.B {}\n", escaped(spoken));
    text += "[\\fIOPTION\\fR]...";
    if (!subcommands_of(app).empty()) {
        text += " \\fISUBCOMMAND\\fR ...";
    }
    for (const CLI::Option* option : app.get_options()) {
        if (is_positional(*option)) {
            text += fmt::format(" [\\fI{}\\fR]", option->get_name(true));
        }
    }
    text += fmt::format("\n.SH DESCRIPTION\n{}\n", escaped(app.get_description()));
    if (const auto commands = subcommands_of(app); !commands.empty()) {
        text += ".SH SUBCOMMANDS\n";
        for (const CLI::App* command : commands) {
            text += page.has_subcommands
                        ? subcommand_text(*command)
                        : fmt::format(".TP\n.B {}\n{}.\nSee\n.BR {}\\-{} (1).\n", command->get_name(),
                                      escaped(command->get_description()), escaped(page.name), command->get_name());
        }
    }
    text += ".SH OPTIONS\n";
    for (const CLI::Option* option : app.get_options()) {
        text += option_text(*option);
    }
    for (const Section& section : page.sections) {
        text += fmt::format(".SH \"{}\"\n", upper(section.title));
        bool first = true;
        for (const auto& [term, meaning] : section.entries) {
            if (!term.empty()) {
                text += fmt::format(".TP\n.B {}\n", escaped(term));
            } else if (!first) {
                text += ".PP\n";
            }
            text += escaped(meaning) + "\n";
            first = false;
        }
    }
    if (!page.see_also.empty()) {
        text += ".SH \"SEE ALSO\"\n";
        for (std::size_t i = 0; i < page.see_also.size(); ++i) {
            const std::string& each = page.see_also[i];
            const std::size_t paren = each.find('(');
            text += fmt::format(".BR {} {}{}\n", escaped(each.substr(0, paren)), each.substr(paren),
                                i + 1 < page.see_also.size() ? " ," : "");
        }
    }
    return text;
}

std::string bash_completion(const CLI::App& program) {
    const std::string name = program.get_name();
    std::string cases;
    for (const CLI::App* command : subcommands_of(program)) {
        cases += fmt::format(
            "        {})\n            case $before in\n{}            esac\n            words='{}'\n            ;;\n",
            command->get_name(), value_cases(*command, "                "), all_words(*command));
    }
    return fmt::format(R"(# Completes {0}(1) in bash. Made from its command line.
_{0}() {{
    local word=$2 before=$3 command='' words i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        [[ ${{COMP_WORDS[i]}} == -* ]] || {{ command=${{COMP_WORDS[i]}}; break; }}
    done
    case $command in
{1}        *)
            case $before in
{2}            esac
            words='{3}'
            ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}}
complete -F _{0} {0}
)",
                       name, cases, value_cases(program, "                "), all_words(program));
}

std::string version_text(std::string_view program) {
    return fmt::format("{} {}\nbuilt from {}\n{}\nwith libibverbs {}, DPDK {}, fmt {}", program, POLLCORE_VERSION,
                       build_facts::kCommit, build_facts::kCompiler, build_facts::kVerbs, build_facts::kDpdk,
                       build_facts::kFmt);
}

}  // namespace pollcore::manual
