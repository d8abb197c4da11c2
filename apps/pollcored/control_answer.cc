#include "control_answer.hpp"

#include <utility>

#include "common/control_wire.hpp"

namespace pollcore::daemon {

std::string answer_text(const ControlJson& result) {
    return ControlJson{{"protocol", control_wire::kProtocol}, {"result", result}}.dump(-1, ' ', true);
}

std::string error_text(std::string_view code, std::string_view why) {
    // An error's text may have bytes that are no UTF-8, such as a file's name.
    return ControlJson{{"protocol", control_wire::kProtocol}, {"error", {{"code", code}, {"text", why}}}}.dump(
        -1, ' ', true, ControlJson::error_handler_t::replace);
}

bool ControlAnswer::begin() noexcept {
    const std::lock_guard lock(mutex_);
    begun_ = !given_up_;
    return begun_;
}

void ControlAnswer::done(std::function<ControlJson()> make) {
    end([make = std::move(make)] { return answer_text(make()); });
}

void ControlAnswer::done(ControlJson result) {
    end([result = std::move(result)] { return answer_text(result); });
}

void ControlAnswer::fail(std::string_view why, std::string_view code) {
    end([text = error_text(code, why)] { return text; });
}

void ControlAnswer::end(std::function<std::string()> text) {
    {
        const std::lock_guard lock(mutex_);
        text_ = std::move(text);
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
