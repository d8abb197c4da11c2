// The text of --help, which fits a screen of 24 lines and 80 columns: the options that most people need, with short
// meanings. --help-all prints all options with their whole descriptions, and the footer.
//
// Thread safety: one thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace pollcore::manual {

class ShortHelp : public CLI::Formatter {
public:
    /// An option of the short text. Without a meaning, the text has the option's description.
    struct Shown {
        std::string option;  ///< one of its names
        std::string meaning{};
    };

    /// Makes the formatter of `app`, and adds --help-all. Subcommands that are added later inherit both.
    static ShortHelp& add_to(CLI::App& app);

    /// The subcommands have no manual pages of their own: the program's page describes them.
    void has_one_page() noexcept { one_page_ = true; }
    /// Sets the options that --help of `command` shows, in this order.
    void show(const CLI::App& command, std::vector<Shown> options);

    std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;

private:
    std::map<const CLI::App*, std::vector<Shown>> shown_;
    bool one_page_ = false;
};

}  // namespace pollcore::manual
