// Commands of pollctl as the daemon reads them, and answers that come late or never.
#include "pollcored/control_command.hpp"

#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "common/control_wire.hpp"
#include "pollcored/control_answer.hpp"

namespace pollcore::daemon {
namespace {

using What = ControlCommand::What;

std::string text(const std::string& members) {
    return R"({"protocol": 1, )" + members + "}";
}

std::string refusal_of(const std::string& bytes) {
    try {
        (void)parse_command(bytes);
        return "accepted";
    } catch (const BadCommand& bad) {
        return bad.what();
    }
}

TEST(ControlCommand, IsReadWithItsArguments) {
    EXPECT_EQ(parse_command(text(R"("command": "status")")).what, What::status);
    EXPECT_EQ(parse_command(text(R"("command": "list", "kind": "queue-pairs")")).kind, "queue-pairs");
    const ControlCommand process =
        parse_command(text(R"("command": "disconnect-process", "process": 4294967295, "grace_ms": 1500)"));
    EXPECT_EQ(process.what, What::disconnect_process);
    EXPECT_EQ(process.process, 4294967295u);
    EXPECT_EQ(process.grace, std::chrono::milliseconds(1500));
    const ControlCommand queue_pair =
        parse_command(text(R"("command": "disconnect-queue-pair", "queue_pair": "17", "device": "nic0")"));
    EXPECT_EQ(queue_pair.queue_pair, "17");
    EXPECT_EQ(queue_pair.device, "nic0");
    EXPECT_EQ(parse_command(text(R"("command": "set-log-level", "level": "debug")")).level, LogLevel::debug);
    for (const std::string_view kind : control_wire::kKinds) {
        EXPECT_EQ(parse_command(text(R"("command": "list", "kind": ")" + std::string(kind) + '"')).kind, kind);
    }
}

TEST(ControlCommand, ThatIsNoneIsRefusedWithTheReason) {
    const std::string flat = "a command is one JSON object of strings and numbers";
    EXPECT_EQ(refusal_of(""), "this is no JSON");
    EXPECT_EQ(refusal_of("{"), "this is no JSON");
    EXPECT_EQ(refusal_of(R"({"protocol": 1, "command": "stop)"), "this is no JSON") << "half a command";
    EXPECT_EQ(refusal_of(std::string("\xff\xfe\0garbage", 10)), "this is no JSON");
    EXPECT_EQ(refusal_of("7"), flat);
    EXPECT_EQ(refusal_of("[]"), flat);
    EXPECT_EQ(refusal_of(std::string(4000, '[')), flat);
    EXPECT_EQ(refusal_of(text(R"("command": {"a": 1})")), flat);
    EXPECT_EQ(refusal_of(text(R"("command": ["stop"])")), flat);
    EXPECT_EQ(refusal_of(R"({"command": "stop"})").substr(0, 34), "this daemon speaks protocol 1 only");
    EXPECT_EQ(refusal_of(R"({"protocol": 2, "command": "stop"})").substr(0, 34), "this daemon speaks protocol 1 only");
    EXPECT_EQ(refusal_of(R"({"protocol": 1})"), "\"command\" is missing");
    EXPECT_EQ(refusal_of(text(R"("command": 7)")), "\"command\" is no string");
    EXPECT_EQ(refusal_of(text(R"("command": "explode")")), "there is no command \"explode\"");
    EXPECT_EQ(refusal_of(text(R"("command": "a\u001b[2Jb")")), R"(there is no command "a\x1b[2Jb")");
    EXPECT_EQ(refusal_of(std::string(5000, ' ')), "a command has at most 4096 bytes");
}

TEST(ControlCommand, WithWrongArgumentsIsRefused) {
    EXPECT_EQ(refusal_of(text(R"("command": "list")")), "the command \"list\" needs \"kind\"");
    EXPECT_EQ(refusal_of(text(R"("command": "list", "kind": "secrets")")), "there is no kind \"secrets\"");
    EXPECT_EQ(refusal_of(text(R"("command": "stop", "process": 1)")), "the command \"stop\" has no \"process\"");
    EXPECT_EQ(refusal_of(text(R"("command": "stop", "": 1)")), "the command \"stop\" has no \"\"");
    for (const char* const number : {"-1", "1.5", "4294967296", "1e300", "\"7\"", "null", "true"}) {
        EXPECT_EQ(refusal_of(text(R"("command": "show-process", "process": )" + std::string(number))),
                  "\"process\" is no integer from 0 to 4294967295")
            << number;
    }
    EXPECT_EQ(refusal_of(text(R"("command": "disconnect-process", "process": 1, "grace_ms": 3600001)")),
              "\"grace_ms\" is no integer from 0 to 3600000");
    EXPECT_EQ(refusal_of(text(R"("command": "disconnect-queue-pair", "queue_pair": ")" + std::string(257, 'a') + '"')),
              "\"queue_pair\" is empty, longer than 256 bytes, or has a NUL");
    EXPECT_EQ(refusal_of(text(R"("command": "disconnect-queue-pair", "queue_pair": "a\u0000b")")),
              "\"queue_pair\" is empty, longer than 256 bytes, or has a NUL");
    EXPECT_EQ(refusal_of(text(R"("command": "set-log-level", "level": "loud")")), "there is no level \"loud\"");
}

TEST(ControlAnswerTest, ThatNobodyWaitsForIsNotBegun) {
    ControlAnswer answer([] {});
    EXPECT_EQ(answer.give_up(), ControlAnswer::Given::up);
    EXPECT_FALSE(answer.begin());
}

TEST(ControlAnswerTest, SaysWhetherTheCommandHasBegun) {
    int told = 0;
    ControlAnswer answer([&] { ++told; });
    EXPECT_TRUE(answer.begin());
    EXPECT_FALSE(answer.take());
    EXPECT_EQ(answer.give_up(), ControlAnswer::Given::begun);
    answer.done({{"a", 1}});
    EXPECT_EQ(told, 1);
    EXPECT_EQ(answer.give_up(), ControlAnswer::Given::late);
    EXPECT_EQ(answer.take(), R"({"protocol":1,"result":{"a":1}})");
    EXPECT_FALSE(answer.take()) << "once";
}

TEST(ControlAnswerTest, IsMadeByTheThreadThatWaits) {
    std::thread::id made_by;
    ControlAnswer answer([] {});
    std::thread([&] {
        answer.done_by([&] {
            made_by = std::this_thread::get_id();
            return answer_around(R"({"b":true})");
        });
    }).join();
    EXPECT_EQ(answer.take(), R"({"protocol":1,"result":{"b":true}})");
    EXPECT_EQ(made_by, std::this_thread::get_id());
}

TEST(ControlAnswerTest, OfAnErrorMayHaveAnyBytes) {
    ControlAnswer answer([] {});
    answer.fail("no file \"\xff\x1b\"");
    EXPECT_EQ(answer.take(), R"({"protocol":1,"error":{"code":"refused","text":"no file \"\ufffd\u001b\""}})");
}

}  // namespace
}  // namespace pollcore::daemon
