"""The commands of the official tool and of ours in the order of the run. Certain parts of their output must be equal
for all servers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

Keep = Callable[[str], list[str]]

_RULES = (
    (r"\b127\.0\.0\.1:\d+", "ADDRESS"),
    (r"\d{4}-\d\d-\d\d[ #T]\d\d:\d\d:\d\d[,:.]\d{3}", "TIME"),
    (r"\b[0-9A-F]{32,56}\b", "ID"),
    (r"\b\d{13}\b", "MS"),
    (r"\d+\.\d+%?", "RATE"),
    (r"[ \t]+", " "),
)
"""Parts of the output that differ from run to run: times, ids, rates, ports of clients."""


def text(output: str) -> list[str]:
    """Returns all lines, sorted, without the parts that differ between runs."""
    for pattern, word in _RULES:
        output = re.sub(pattern, word, output)
    return sorted(filter(None, (line.strip() for line in output.splitlines()))) or ["nothing printed"]


def first(count: int, pattern: str = "") -> Keep:
    """Returns a function that keeps only the first ``count`` words of each matching line."""
    return lambda output: sorted({" ".join(line.split()[:count]) for line in text(output) if re.search(pattern, line)})


def matching(pattern: str) -> Keep:
    """Returns a function that keeps only the matching lines of the output."""
    return lambda output: [line for line in text(output) if re.search(pattern, line)]


def found(pattern: str) -> Keep:
    """Returns a function that returns all matches of ``pattern`` in the output, sorted, each once."""
    return lambda output: sorted(set(re.findall(pattern, "\n".join(text(output)))))


def failed(output: str) -> list[str]:
    """Returns the exception that ended the command, with its code."""
    return sorted(set(re.findall(r"\w+Exception|CODE: \d+", output)))


def _shared_names(output: str) -> list[str]:
    """Returns the names of options or figures that every broker has."""
    names = {re.split(r"[=:]", line)[0].strip() for line in text(output) if re.search(r"\S\s*[=:]", line)}
    return sorted(names & SHARED)


_NAMES = """
    autoCreateTopicEnable brokerClusterName brokerId brokerName brokerPermission brokerRole defaultTopicQueueNums
    deleteWhen fileReservedTime flushDiskType listenPort longPollingEnable mappedFileSizeCommitLog maxMessageSize
    messageDelayLevel namesrvAddr storePathRootDir transactionCheckMax scanNotActiveBrokerInterval kvConfigPath
    bindAddress bootTimestamp brokerActive brokerVersion brokerVersionDesc commitLogDirCapacity commitLogDiskRatio
    commitLogMaxOffset commitLogMinOffset consumeQueueDiskRatio dispatchBehindBytes earliestMessageTimeStamp
    getFoundTps getTransferredTps msgGetTotalTodayMorning msgGetTotalTodayNow msgGetTotalYesterdayMorning
    msgPutTotalTodayMorning msgPutTotalTodayNow msgPutTotalYesterdayMorning pullThreadPoolQueueSize putMessageTimesTotal
    putTps remainHowManyDataToFlush runtime sendThreadPoolQueueCapacity sendThreadPoolQueueSize
"""
SHARED = frozenset(_NAMES.split())
"""Options and figures that both our servers and the official ones have."""


@dataclass(frozen=True)
class Command:
    """One command line.

    Attributes:
        words: the command line. NS, BROKER, CLIENT, ID, OUR_ID, OFFSET_ID, HOME, TOPICS and GROUPS stand for values of
            the run.
        keep: takes the parts of the output that are compared.
        code: the exit code that our tool must return; the official one always returns 0.
    """

    words: str
    keep: Keep = text
    code: int = 0

    def as_expected(self, output: str, code: int) -> bool:
        """Whether the command returned the right exit code."""
        return code == self.code and ("SubCommandException" not in output or self.keep is failed)

    @property
    def name(self) -> str:
        """Name of the command, without its options."""
        return self.words.split()[0]

    def line(self, places: dict[str, str]) -> list[str]:
        """Returns the words of the command line, with all names replaced by their values."""
        return [places.get(word, word).replace("_SPACE_", " ") for word in self.words.split()]


LISTED = found(r"\b(?:T_admin|T_new|BenchmarkTest|TBW102|SCHEDULE_TOPIC_XXXX|SELF_TEST_TOPIC|broker-a)\b")

MESSAGE = found(r"(?:Topic|Tags|Keys|Queue ID|Queue Offset|Reconsume Times|System Flag): \S+")

PRINTED = found(r"KEYS=\w+|BODY: [\w ]+|Consume ok|Tag: \w+ Count: \d+")

TRACED = found(r"(?:Pub|Sub) G_\w+|success|failed")

DONE = found("success|User:alice|alice")

WORDS = found(
    r"\b(?:alice|admin|bob|Super|Normal|enable|disable|Custom|Topic:A|Group:B|Pub|Sub|Allow|Deny|10\.0\.0\.[01])\b"
    "|^nothing printed"
)

OFFICIAL = (
    Command("clusterList -n NS", first(4)),
    Command("clusterList -n NS -m", first(3)),
    Command("topicList -n NS", LISTED),
    Command("topicList -n NS -c", first(2, "T_admin")),
    Command("topicRoute -n NS -t T_admin"),
    Command("topicRoute -n NS -t T_none", failed),
    Command("topicStatus -n NS -t T_admin"),
    Command("topicStatus -n NS -t T_none", failed),
    Command("topicClusterList -n NS -t T_admin"),
    Command("updateTopic -n NS -b BROKER -t T_new -r 3 -w 2"),
    Command("updateTopic -n NS -c DefaultCluster -t T_new -r 4 -w 4 -o true -a +message.type=FIFO"),
    Command("updateTopic -n NS -b BROKER -t T_new -a +no.such=1", failed),
    Command("updateTopic -n NS -b BROKER -t TBW102", failed),
    Command("updateTopicPerm -n NS -b BROKER -t T_new -p 4"),
    Command("topicRoute -n NS -t T_new"),
    Command("updateOrderConf -n NS -t T_new -m get"),
    Command("updateOrderConf -n NS -t T_new -m put -v broker-a:9"),
    Command("updateOrderConf -n NS -t T_new -m get"),
    Command("updateOrderConf -n NS -t T_new -m delete"),
    Command("wipeWritePerm -n NS -b broker-a", found(r"wipe write perm of broker\[broker-a\] in name server\S* OK")),
    Command("topicRoute -n NS -t T_admin"),
    Command("addWritePerm -n NS -b broker-a", found(r"add write perm of broker\[broker-a\] in name server\S* OK")),
    Command("topicRoute -n NS -t T_admin"),
    Command("brokerStatus -n NS -b BROKER", _shared_names),
    Command("brokerStatus -n NS -c DefaultCluster", found(r"brokerVersionDesc\s*: V5_3_3")),
    Command("getBrokerConfig -n NS -b BROKER", _shared_names),
    Command("updateBrokerConfig -n NS -b BROKER -k shortPollingTimeMills -v 1500"),
    Command("getBrokerConfig -n NS -b BROKER", matching("shortPollingTimeMills")),
    Command("updateBrokerConfig -n NS -b BROKER -k brokerConfigPath -v x", failed),
    Command("updateBrokerConfig -n NS -b BROKER -k enableSplitRegistration -v true"),
    Command("updateBrokerConfig -n NS -b BROKER -k enableSingleTopicRegister -v true"),
    Command("updateTopic -n NS -b BROKER -t T_batch -r 2 -w 2 -a +queue.type=BatchCQ"),
    Command("topicRoute -n NS -t T_batch"),
    Command("topicStatus -n NS -t T_batch"),
    Command("updateColdDataFlowCtrGroupConfig -n NS -b BROKER -g G_cold -v 1000"),
    Command("getColdDataFlowCtrInfo -n NS -b BROKER"),
    Command("removeColdDataFlowCtrGroupConfig -n NS -b BROKER -g G_cold"),
    Command("setCommitLogReadAheadMode -n NS -b BROKER -m 1"),
    Command("setCommitLogReadAheadMode -n NS -b BROKER -m 0"),
    Command("updateSubGroup -n NS -b BROKER -g G_new -s true -r 3 -q 2"),
    Command("updateSubGroup -n NS -c DefaultCluster -g G_new -s true -r 4 -q 2 -m true"),
    Command("getConsumerConfig -n NS -g G_new"),
    Command("consumerProgress -n NS -g G_admin", first(5, "^T_admin")),
    Command("consumerProgress -n NS -g G_ours_C -t T_admin", first(7, "^T_admin|Inflight Total")),
    Command("consumerProgress -n NS", first(5, "G_admin")),
    Command("consumerProgress -n NS -g G_none", failed),
    Command("consumerConnection -n NS -g G_admin", found(r"T_admin|%RETRY%G_admin|JAVA|V5_3_3|CLUSTERING|CONSUME_\w+")),
    Command("consumerConnection -n NS -g G_none", failed),
    Command("consumerStatus -n NS -g G_admin", found(r"@consumer|V5_3_3")),
    Command("consumerStatus -n NS -g G_admin -i CLIENT", found(r"#Consumer \w+#|broker-a|T_admin|PROP_\w+")),
    Command("producerConnection -n NS -g G_admin_P -t T_admin", found(r"@producer|JAVA|V5_3_3")),
    Command("producerConnection -n NS -g G_none -t T_admin", failed),
    Command("producer -n NS -b BROKER", found(r"G_admin_P|CLIENT_INNER_PRODUCER|JAVA")),
    Command("brokerConsumeStats -n NS -b BROKER", first(7, "T_admin|Diff Total")),
    Command("statsAll -n NS -t T_admin", first(3, "G_admin")),
    Command(
        "queryCq -n NS -t T_admin -q 1 -i 1 -c 2 -b BROKER -g G_admin",
        found(r"[Qq]ueue: \S+|tagsCode=\d+|maxQueueIndex: \d+"),
    ),
    Command("queryMsgById -n NS -t T_admin -i OFFSET_ID", MESSAGE),
    Command("queryMsgByUniqueKey -n NS -t T_admin -i ID", MESSAGE),
    Command("queryMsgByKey -n NS -t T_admin -k key3"),
    Command("queryMsgByKey -n NS -t T_admin -k none", failed),
    Command("queryMsgByOffset -n NS -t T_admin -b broker-a -i 1 -o 2", MESSAGE),
    Command("resetOffsetByTime -n NS -g G_new -t T_admin -s 0", found(r"broker-a \d \d+")),
    Command("resetOffsetByTime -n NS -g G_none -t T_admin -s now", failed),
    Command("skipAccumulatedMessage -n NS -g G_new -t T_admin", found(r"broker-a \d \d+")),
    Command("cloneGroupOffset -n NS -s G_admin -d G_new -t T_admin -o true"),
    Command("cloneGroupOffset -n NS -s G_admin -d G_none -t T_admin -o true", failed),
    Command("sendMessage -n NS -t T_admin -p hello -k adm -c TagA -b broker-a -i 0", found("broker-a 0 SEND_OK")),
    Command("printMsg -n NS -t T_admin", found(r"KEYS=\w+|BODY: [\w ]+")),
    Command("printMsgByQueue -n NS -t T_admin -a broker-a -i 1 -f true -p true -d true", PRINTED),
    Command("consumeMessage -n NS -t T_admin -b broker-a -i 1 -o 2", PRINTED),
    Command("checkMsgSendRT -n NS -t broker-a -a 3 -s 10", found(r"broker-a \d true")),
    Command("sendMsgStatus -n NS -b broker-a -c 2", found(r"sendStatus=\w+|queueOffset=\d+")),
    Command("queryMsgTraceById -n NS -i ID", TRACED),
    Command("queryMsgTraceById -n NS -i OUR_ID", TRACED),
    Command("resetOffsetByTime -n NS -g G_new -t T_admin -s 0 -b BROKER -q 1 -o 3", found(r"offset to \d+")),
    Command("setConsumeMode -n NS -b BROKER -t T_admin -g G_new -m POP -q 2"),
    Command("setConsumeMode -n NS -b BROKER -t T_none -g G_new -m POP", failed),
    Command("allocateMQ -n NS -t T_admin -i 10.0.0.1,10.0.0.2", found(r'"10.0.0.\d":|"queueId":\d')),
    Command("haStatus -n NS -b BROKER", found(r"#SlaveNum \d+|#SlaveAckOffset")),
    Command("exportMetadata -n NS -c DefaultCluster -f HOME", found("metadata.json success")),
    Command("exportConfigs -n NS -c DefaultCluster -f HOME", found("configs.json success")),
    Command("updateTopicList -n NS -b BROKER -f TOPICS"),
    Command("topicRoute -n NS -t T_listed"),
    Command("updateSubGroupList -n NS -b BROKER -f GROUPS"),
    Command("getConsumerConfig -n NS -g G_listed"),
    Command("cleanExpiredCQ -n NS -b BROKER"),
    Command("cleanUnusedTopic -n NS -b BROKER"),
    Command("deleteExpiredCommitLog -n NS -b BROKER"),
    Command("getNamesrvConfig -n NS", _shared_names),
    Command("updateNamesrvConfig -n NS -k scanNotActiveBrokerInterval -v 6000"),
    Command("getNamesrvConfig -n NS", matching("scanNotActiveBrokerInterval")),
    Command("updateNamesrvConfig -n NS -k kvConfigPath -v x", failed),
    Command("updateKvConfig -n NS -s NS1 -k key1 -v value_SPACE_1"),
    Command("deleteKvConfig -n NS -s NS1 -k key1"),
    Command("deleteSubGroup -n NS -c DefaultCluster -g G_new -r true"),
    Command("getConsumerConfig -n NS -g G_new"),
    Command("deleteTopic -n NS -c DefaultCluster -t T_new"),
    Command("topicList -n NS", LISTED),
)
"""Every supported command, in cases that succeed and in cases that are refused."""

OUR_TRACED = found(r'"#Type":"\w+","#\w+Group":"G_\w+"|"#Status":"\w+"')

OURS = (
    Command("clusterList -n NS", found(r'"Cluster Name":"\w+"|"Broker Name":"[\w-]+"|"BID":0|"Version":"V5_3_3"')),
    Command("clusterList -n NS -m", found(r'"Cluster Name":"\w+"|"InTotalToday"')),
    Command("topicList -n NS", LISTED),
    Command("topicList -n NS -c", matching("T_admin.*G_admin")),
    Command("topicRoute -n NS -t T_admin"),
    Command("topicRoute -n NS -t T_none", found("code 17"), 1),
    Command("topicStatus -n NS -t T_admin"),
    Command("topicClusterList -n NS -t T_admin"),
    Command("updateTopic -n NS -b BROKER -t T_ours -r 3 -w 2"),
    Command("updateTopic -n NS -c DefaultCluster -t T_ours -r 4 -w 4 -o true -a +message.type=FIFO"),
    Command("updateTopic -n NS -b BROKER -t T_ours -a +no.such=1", found("code 1: unsupported key: no.such"), 1),
    Command("updateTopic -n NS -b BROKER -t TBW102", found("code 29"), 1),
    Command("updateTopicPerm -n NS -b BROKER -t T_ours -p 4"),
    Command("topicRoute -n NS -t T_ours"),
    Command("updateOrderConf -n NS -t T_ours -m get"),
    Command("updateOrderConf -n NS -t T_ours -m put -v broker-a:9"),
    Command("updateOrderConf -n NS -t T_ours -m delete"),
    Command("updateOrderConf -n NS -t T_ours -m get"),
    Command("wipeWritePerm -n NS -b broker-a", found('"broker":"broker-a"')),
    Command("topicRoute -n NS -t T_admin"),
    Command("addWritePerm -n NS -b broker-a", found('"broker":"broker-a"')),
    Command("topicRoute -n NS -t T_admin"),
    Command("brokerStatus -n NS -b BROKER", found('"brokerVersionDesc":"V5_3_3"|"commitLogMinOffset":"0"')),
    Command("getBrokerConfig -n NS -b BROKER", found('"brokerName":"broker-a"|"fileReservedTime":"72"')),
    Command("updateBrokerConfig -n NS -b BROKER -k shortPollingTimeMills -v 1600"),
    Command("getBrokerConfig -n NS -b BROKER", found('"shortPollingTimeMills":"1600"')),
    Command("updateBrokerConfig -n NS -b BROKER -k brokerConfigPath -v x", found("code 16"), 1),
    Command("updateSubGroup -n NS -b BROKER -g G_ours -s true -r 3 -q 2"),
    Command("updateSubGroup -n NS -c DefaultCluster -g G_ours -r 4 -q 2 -m true"),
    Command("getConsumerConfig -n NS -g G_ours"),
    Command(
        "consumerProgress -n NS -g G_admin",
        found(r'"Topic":"\S+?","Broker Name":"broker-a","QID":\d,"Broker Offset":\d+'),
    ),
    Command("consumerProgress -n NS", found(r'"Group":"G_admin","Count":1,"Version":"479","Type":"\w+","Model":"\w+"')),
    Command("consumerProgress -n NS -g G_none", found("code 17"), 1),
    Command(
        "consumerConnection -n NS -g G_admin", found(r'@consumer|"Language":"JAVA"|"Topic":"\S+?"|"ConsumeType":"\w+"')
    ),
    Command("consumerConnection -n NS -g G_none", found("code 17"), 1),
    Command("consumerStatus -n NS -g G_admin", found(r'@consumer|"PROP_CLIENT_VERSION":"\w+"|"QID":\d,"Topic":"\S+?"')),
    Command("producerConnection -n NS -g G_admin_P -t T_admin", found('@producer|"Language":"JAVA"')),
    Command("producerConnection -n NS -g G_none -t T_admin", found("is online"), 1),
    Command("producer -n NS -b BROKER", found('"Group":"G_admin_P"|"Group":"CLIENT_INNER_PRODUCER"')),
    Command(
        "brokerConsumeStats -n NS -b BROKER",
        found(r'"Topic":"\S+?","Group":"G_admin","Broker Name":"broker-a","QID":\d,"Broker Offset":\d+'),
    ),
    Command("statsAll -n NS -t T_admin", found('"Topic":"T_admin","Consumer Group":"G_admin","Accumulation":0')),
    Command(
        "queryCq -n NS -t T_admin -q 1 -i 1 -c 2 -b BROKER -g G_admin",
        found(r'"\w+QueueIndex":\d+|"TagsCode":\d+|"subscription":"\*"'),
    ),
    Command(
        "queryMsgById -n NS -t T_admin -i OFFSET_ID", found(r'"Keys":"\w+"|"Queue \w+":\d+|"Message Body":"[^"]+"')
    ),
    Command(
        "queryMsgByUniqueKey -n NS -t T_admin -i ID", found(r'"Keys":"\w+"|"Queue \w+":\d+|"Message Body":"[^"]+"')
    ),
    Command("queryMsgByKey -n NS -t T_admin -k key3"),
    Command("queryMsgByKey -n NS -t T_admin -k none", code=1),
    Command("queryMsgByOffset -n NS -t T_admin -b broker-a -i 1 -o 2", found(r'"Keys":"\w+"|"Message Body":"[^"]+"')),
    Command("queryMsgByOffset -n NS -t T_admin -b broker-a -i 1 -o 99", code=1),
    Command("resetOffsetByTime -n NS -g G_ours -t T_admin -s 0"),
    Command("resetOffsetByTime -n NS -g G_none -t T_admin -s now", found("code 26"), 1),
    Command("skipAccumulatedMessage -n NS -g G_ours -t T_admin"),
    Command("cloneGroupOffset -n NS -s G_admin -d G_ours -t T_admin"),
    Command("cloneGroupOffset -n NS -s G_admin -d G_none -t T_admin", found("code 26"), 1),
    Command("sendMessage -n NS -t T_admin -p ours -k adm -b broker-a -i 0", found('"#QID":0,"#Send Result":"SEND_OK"')),
    Command("printMsg -n NS -t T_admin", found(r'"KEYS":"\w+"|"body":"[\w ]+"')),
    Command(
        "printMsgByQueue -n NS -t T_admin -a broker-a -i 1 -f true -p true -d true",
        found(r'"body":"[\w ]+"|"count":\d'),
    ),
    Command("consumeMessage -n NS -t T_admin -b broker-a -i 1 -o 2", found(r'"queueOffset":\d+|"body":"[\w ]+"')),
    Command("checkMsgSendRT -n NS -t broker-a -a 3 -s 10", found(r'"#QID":\d,"#Send Result":\w+')),
    Command("sendMsgStatus -n NS -b broker-a -c 2", found(r'"sendStatus":"\w+"')),
    Command("clusterRT -n NS -a 3 --rounds 1", found(r'"#successCount":\d+,"#failCount":\d+')),
    Command("queryMsgTraceById -n NS -i ID", OUR_TRACED),
    Command("queryMsgTraceById -n NS -i OUR_ID", OUR_TRACED),
    Command("resetOffsetByTime -n NS -g G_ours -t T_admin -s 0 -b BROKER -q 1 -o 3", found(r'"offset":\d+')),
    Command("setConsumeMode -n NS -b BROKER -t T_admin -g G_ours -m POP -q 2"),
    Command("setConsumeMode -n NS -b BROKER -t T_none -g G_ours -m POP", found(r"code \d+"), 1),
    Command("allocateMQ -n NS -t T_admin -i 10.0.0.1,10.0.0.2"),
    Command("haStatus -n NS -b BROKER", found(r'"#SlaveNum":\d+')),
    Command("exportMetadata -n NS -c DefaultCluster -f HOME", found("metadata.json")),
    Command("exportConfigs -n NS -c DefaultCluster -f HOME", found("configs.json")),
    Command("updateTopicList -n NS -b BROKER -f TOPICS"),
    Command("topicRoute -n NS -t T_listed"),
    Command("updateSubGroupList -n NS -b BROKER -f GROUPS"),
    Command("getConsumerConfig -n NS -g G_listed"),
    Command("cleanExpiredCQ -n NS -b BROKER"),
    Command("cleanUnusedTopic -n NS -b BROKER"),
    Command("deleteExpiredCommitLog -n NS -b BROKER"),
    Command("getNamesrvConfig -n NS", found('"scanNotActiveBrokerInterval":"6000"')),
    Command("updateNamesrvConfig -n NS -k scanNotActiveBrokerInterval -v 7000"),
    Command("getNamesrvConfig -n NS", found('"scanNotActiveBrokerInterval":"7000"')),
    Command("updateNamesrvConfig -n NS -k kvConfigPath -v x", found("code 16"), 1),
    Command("updateKvConfig -n NS -s NS1 -k key1 -v value_SPACE_1"),
    Command("deleteKvConfig -n NS -s NS1 -k key1"),
    Command("deleteSubGroup -n NS -c DefaultCluster -g G_ours -r true"),
    Command("getConsumerConfig -n NS -g G_ours", code=1),
    Command("deleteTopic -n NS -c DefaultCluster -t T_ours"),
    Command("topicRoute -n NS -t T_ours", found("code 17"), 1),
)
"""Commands for our tool, which then prints JSON; they run after those of the official tool."""

RULE = "-r Topic:A,Group:B* -a Pub,Sub -d"
_BOTH = (
    Command("createUser -n NS -b BROKER -u alice -p a-secret-of-alice -t Normal", DONE),
    Command("updateUser -n NS -c DefaultCluster -u alice -s disable", DONE),
    Command("getUser -n NS -b BROKER -u alice", WORDS),
    Command("getUser -n NS -b BROKER -u nobody", WORDS),
    Command("listUser -n NS -b BROKER", WORDS),
    Command("listUser -n NS -c DefaultCluster -f ali", WORDS),
    Command(f"createAcl -n NS -b BROKER -s User:alice {RULE} Allow -i 10.0.0.0/8", DONE),
    Command("updateAcl -n NS -c DefaultCluster -s User:alice -r Topic:A -a Pub -d Deny -i 10.0.0.1", DONE),
    Command("getAcl -n NS -b BROKER -s User:alice", WORDS),
    Command("getAcl -n NS -b BROKER -s User:admin", WORDS),
    Command("listAcl -n NS -b BROKER", WORDS),
    Command("listAcl -n NS -b BROKER -s bob", WORDS),
    Command("copyUser -n NS -f BROKER -t BROKER -u alice", DONE),
    Command("copyAcl -n NS -f BROKER -t BROKER -s User:alice", DONE),
    Command("deleteAcl -n NS -b BROKER -s User:alice -r Topic:A", DONE),
    Command("getAcl -n NS -b BROKER -s User:alice", WORDS),
    Command("updateTopic -n NS -b BROKER -t T_guarded -r 2 -w 2", found("success|T_guarded")),
)
"""Commands about users and rules, for a broker with authentication."""
OFFICIAL_ACCESS = (
    *_BOTH,
    Command("createUser -n NS -b BROKER -u alice -p a-secret-of-alice", failed),
    Command("updateUser -n NS -b BROKER -u nobody -s enable", failed),
    Command("getAcl -n NS -b BROKER -s User:nobody", failed),
    Command("createAcl -n NS -b BROKER -s User:nobody -r Topic:A -a Pub -d Allow", failed),
    Command("deleteUser -n NS -c DefaultCluster -u alice", DONE),
    Command("listUser -n NS -b BROKER", WORDS),
)
OURS_ACCESS = (
    *_BOTH,
    Command("createUser -n NS -b BROKER -u alice -p a-secret-of-alice", found(r"code \d+"), 1),
    Command("updateUser -n NS -b BROKER -u nobody -s enable", found(r"code \d+"), 1),
    Command("getAcl -n NS -b BROKER -s User:nobody", found(r"code \d+"), 1),
    Command("createAcl -n NS -b BROKER -s User:nobody -r Topic:A -a Pub -d Allow", found(r"code \d+"), 1),
    Command("deleteUser -n NS -c DefaultCluster -u alice", DONE),
    Command("listUser -n NS -b BROKER", WORDS),
)
