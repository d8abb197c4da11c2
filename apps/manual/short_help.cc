#include "short_help.hpp"

#include <algorithm>
#include <cctype>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "manual.hpp"

namespace pollcore::manual {
namespace {

constexpr std::size_t kScreenColumns = 80;
constexpr std::size_t kMeaningColumn = 26;

std::string line(const std::string& term, const std::string& meaning) {
    const std::string start = fmt::format("  {:<{}} ", term, kMeaningColumn - 3);
    return start + wrapped(meaning, start.size(), kMeaningColumn, kScreenColumns) + "\n";
}

/// The name of an option's value. Instead of choices such as `{a,b}` it is the option's last word: LEVEL.
std::string value_name(const CLI::Option& option) {
    if (option.get_items_expected_max() == 0) {
        return {};
    }
    std::string name = option.get_type_name();
    if (name.starts_with('{')) {
        name = option.get_lnames().front();
        name.erase(0, name.rfind('-') + 1);
        std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
    }
    return " " + name;
}

}  // namespace

ShortHelp& ShortHelp::add_to(CLI::App& app) {
    const auto help = std::make_shared<ShortHelp>();
    app.formatter(help);
    app.set_help_all_flag("--help-all", "Print all options with all that they mean, and exit");
    return *help;
}

void ShortHelp::show(const CLI::App& command, std::vector<Shown> options) {
    shown_[&command] = std::move(options);
}

std::string ShortHelp::make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const {
    if (mode != CLI::AppFormatMode::Normal) {
        return Formatter::make_help(app, name, CLI::AppFormatMode::Normal);
    }
    std::string page = one_page_ ? name.substr(0, name.find(' ')) : name;
    std::replace(page.begin(), page.end(), ' ', '-');
    std::string text = wrapped(app->get_description(), 0, 0, kScreenColumns) + "\n";
    text += make_usage(app, std::move(name)) + "\n";
    for (const CLI::App* command : app->get_subcommands([](const CLI::App*) { return true; })) {
        text += line(command->get_name(), command->get_description());
    }
    if (const auto shown = shown_.find(app); shown != shown_.end()) {
        for (const auto& [name_of_option, meaning] : shown->second) {
            const CLI::Option& option = *app->get_option(name_of_option);
            const bool positional = option.get_positional();
            text += line(option.get_name(positional, true) + (positional ? "" : value_name(option)),
                         meaning.empty() ? option.get_description() : meaning);
        }
    }
    return text + line("--help-all", fmt::format("The rest; the manual page {}(1) has it, too", page));
}

}  // namespace pollcore::manual
