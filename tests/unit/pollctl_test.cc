// pollctl: its command line, answers that are none, and what it shows of hostile texts.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "pollctl/answer_view.hpp"
#include "pollctl/ask_daemon.hpp"
#include "pollctl/ctl_options.hpp"

namespace pollcore::ctl {
namespace {

ParsedOptions parse(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "pollctl");
    testing::internal::CaptureStderr();
    const ParsedOptions parsed = parse_options(static_cast<int>(arguments.size()), arguments.data());
    (void)testing::internal::GetCapturedStderr();
    return parsed;
}

std::string command(std::vector<const char*> arguments) {
    const ParsedOptions parsed = parse(std::move(arguments));
    return parsed.options ? parsed.options->command.dump() : "refused";
}

TEST(PollctlOptions, BecomeTheDaemonsCommands) {
    EXPECT_EQ(command({"status"}), R"({"protocol":1,"command":"status"})");
    EXPECT_EQ(command({"list", "queue-pairs"}), R"({"protocol":1,"command":"list","kind":"queue-pairs"})");
    EXPECT_EQ(command({"show", "process", "7"}), R"({"protocol":1,"command":"show-process","process":7})");
    EXPECT_EQ(command({"disconnect", "process", "7", "--timeout", "1.5"}),
              R"({"protocol":1,"command":"disconnect-process","process":7,"grace_ms":1500})");
    EXPECT_EQ(command({"disconnect", "queue-pair", "a name", "--device", "nic0"}),
              R"({"protocol":1,"command":"disconnect-queue-pair","queue_pair":"a name","device":"nic0"})");
    EXPECT_EQ(command({"log-level"}), R"({"protocol":1,"command":"log-level"})");
    EXPECT_EQ(command({"log-level", "debug"}), R"({"protocol":1,"command":"set-log-level","level":"debug"})");
    for (const char* const name : {"drain", "resume", "stop", "reload", "health", "version"}) {
        EXPECT_EQ(command({name}), R"({"protocol":1,"command":")" + std::string(name) + "\"}");
    }
    const ParsedOptions all =
        parse({"--socket", "/tmp/s", "--answer-within", "2.5", "drain", "--wait", "60", "--json"});
    ASSERT_TRUE(all.options);
    EXPECT_EQ(all.options->socket, "/tmp/s");
    EXPECT_TRUE(all.options->json);
    EXPECT_EQ(all.options->answer_within, std::chrono::milliseconds(2500));
    EXPECT_EQ(all.options->drain_wait, std::chrono::minutes(1));
}

TEST(PollctlOptions, ThatAreWrongExitWithTwo) {
    const std::vector<std::vector<const char*>> wrong{{},
                                                      {"explode"},
                                                      {"list"},
                                                      {"list", "secrets"},
                                                      {"show", "process"},
                                                      {"show", "process", "-1"},
                                                      {"show", "queue-pair", "1"},
                                                      {"disconnect", "process", "gateway"},
                                                      {"disconnect", "process", "4294967296"},
                                                      {"disconnect", "process", "1", "--device", "nic0"},
                                                      {"disconnect", "queue-pair", "1", "--timeout", "1"},
                                                      {"disconnect", "process", "1", "--timeout", "3601"},
                                                      {"log-level", "loud"},
                                                      {"--answer-within", "0", "status"}};
    for (const auto& arguments : wrong) {
        EXPECT_EQ(parse(arguments).exit_code, kExitUsage) << testing::PrintToString(arguments);
    }
}

TEST(PollctlAnswer, IsTheResultOrTheError) {
    EXPECT_EQ(result_of(R"({"protocol":1,"result":{"a":1}})", "/s").dump(), R"({"a":1})");
    const auto error = [](const std::string& code) {
        return R"({"protocol":1,"error":{"code":")" + code + R"(","text":"because"}})";
    };
    EXPECT_THROW((void)result_of(error("refused"), "/s"), Refused);
    EXPECT_THROW((void)result_of(error("busy"), "/s"), Refused);
    EXPECT_THROW((void)result_of(error("not_permitted"), "/s"), NoDaemon);
}

TEST(PollctlAnswer, OfSomethingElseIsNone) {
    for (const char* const text :
         {"", "{", "null", "7", "[]", "{}", "garbage\x1b[2J", R"({"protocol":2,"result":{}})", R"({"protocol":1})",
          R"({"protocol":1,"error":7})", R"({"protocol":1,"error":{"code":"refused"}})",
          R"({"protocol":1,"error":{"code":"refused","text":7}})"}) {
        EXPECT_THROW((void)result_of(text, "/s"), NoDaemon) << text;
    }
    EXPECT_THROW((void)result_of(std::string(1'000'000, '['), "/s"), NoDaemon);
    EXPECT_THROW((void)result_of(
                     R"({"protocol":1,"result":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}", "/s"),
                 NoDaemon);
}

TEST(PollctlView, ShowsListsAsTables) {
    EXPECT_EQ(view_of(Json::parse(
                  R"({"queue_pairs":[{"qp_num":7,"name":"a","up":true},{"qp_num":12,"name":"bcd","up":false}]})")),
              "qp num  name  up\n"
              "     7  a     yes\n"
              "    12  bcd   no\n");
    EXPECT_EQ(view_of(Json::parse(R"({"queue_pairs":[]})")), "no queue pairs\n");
    EXPECT_EQ(view_of(Json::parse(
                  R"({"pid":7,"user_most":null,"list":["a","b"],"rows":[{"most":null},{"most":3}],"none":[]})")),
              "pid: 7\n"
              "user most: -\n"
              "list: a, b\n"
              "\n"
              "rows:\n"
              "most\n"
              "   -\n"
              "   3\n"
              "none: none\n");
}

TEST(PollctlView, MakesTextsOfStrangersHarmless) {
    EXPECT_EQ(safe("client 7 \"gateway\" \\x1b"), "client 7 \"gateway\" \\x1b") << "as it is";
    EXPECT_EQ(safe("a\x1b[2Jb\n\xff"), "a\\x1b[2Jb\\x0a\\xff");
    const std::string shown = view_of(
        Json::parse(R"({"rows":[{"a\u001b":"\u001b]0;x\u0007","b":[1,{"c\n":"\u009b"}]},7,{}],"x\n":"\u0000"})"));
    EXPECT_EQ(
        shown.find_first_not_of(
            "\n !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~"),
        std::string::npos)
        << shown;
    EXPECT_NE(shown.find("\\x1b]0;x\\x07"), std::string::npos) << shown;
}

}  // namespace
}  // namespace pollcore::ctl
