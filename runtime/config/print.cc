#include <iterator>
#include <vector>

#include <fmt/format.h>

#include "config/schema.hpp"

namespace pollcore {
namespace config {
namespace {

class Printer {
public:
    template <class Object>
    void table(std::string_view name, const Object& object) {
        section(fmt::format("[{}]", name), object);
    }

    template <class Object>
    void list(std::string_view name, const std::vector<Object>& objects) {
        for (const Object& object : objects) {
            section(fmt::format("[[{}]]", name), object);
        }
    }

    [[nodiscard]] std::string take() { return std::move(text_); }

private:
    template <class Object>
    void section(const std::string& header, const Object& object) {
        const Object defaults;
        fmt::format_to(std::back_inserter(text_), "{}{}\n", text_.empty() ? "" : "\n", header);
        each_field(object, Cpus{}, [&](const Key& key, auto member, const auto& rule) {
            if (!key.applies) {
                return;
            }
            using Rule = std::remove_cvref_t<decltype(rule)>;
            const std::string value = rule.print(value_of<Rule>(object.*member));
            const bool is_default = !key.required && !key.by_machine && object.*member == defaults.*member;
            fmt::format_to(std::back_inserter(text_), "{} = {}{}\n", key.name, value, is_default ? "  # default" : "");
        });
    }

    std::string text_;
};

}  // namespace
}  // namespace config

std::string print_config(const Config& config) {
    config::Printer printer;
    config::each_section(config, printer);
    return printer.take();
}

}  // namespace pollcore
