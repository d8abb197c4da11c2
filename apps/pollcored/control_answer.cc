#include "control_answer.hpp"

#include <utility>

#include <fmt/format.h>

#include "common/control_wire.hpp"

namespace pollcore::daemon {

std::string text_of(const ControlJson& value) {
    // An error's text may have bytes that are no UTF-8, such as a file's name.
    return value.dump(-1, ' ', true, ControlJson::error_handler_t::replace);
}

std::string answer_around(const std::string& result) {
    return fmt::format(R"({{"protocol":{},"result":{}}})", control_wire::kProtocol, result);
}

std::string error_text(std::string_view code, std::string_view why) {
    return text_of({{"protocol", control_wire::kProtocol}, {"error", {{"code", code}, {"text", why}}}});
}

bool ControlAnswer::begin() noexcept {
    const std::lock_guard lock(mutex_);
    begun_ = !given_up_;
    return begun_;
}

void ControlAnswer::done(const ControlJson& result) {
    done_by([text = answer_around(text_of(result))] { return text; });
}

void ControlAnswer::fail(std::string_view why, std::string_view code) {
    done_by([text = error_text(code, why)] { return text; });
}

void ControlAnswer::done_by(std::function<std::string()> make) {
    {
        const std::lock_guard lock(mutex_);
        text_ = std::move(make);
    }
    tell_();
}

ControlAnswer::Given ControlAnswer::give_up() noexcept {
    const std::lock_guard lock(mutex_);
    if (text_ != nullptr) {
        return Given::late;
    }
    given_up_ = true;
    return begun_ ? Given::begun : Given::up;
}

std::optional<std::string> ControlAnswer::take() {
    std::function<std::string()> text;
    {
        const std::lock_guard lock(mutex_);
        text = std::exchange(text_, nullptr);
    }
    return text != nullptr ? std::optional(text()) : std::nullopt;
}

}  // namespace pollcore::daemon
